"""Read the file formats, one module each, through `heatmover.cohort.reader.Reader`; for `cohort`, `study.scale`."""
