"""Drawing: maps, heatmaps and colours from plain arrays; it knows neither AnnData nor studies."""
