"""Drawing: maps, heatmaps and colors from plain arrays; it knows neither AnnData nor studies."""
