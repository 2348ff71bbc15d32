"""Draw maps and heatmaps from plain arrays, for `pl`, reports and comparisons; independent of AnnData."""
