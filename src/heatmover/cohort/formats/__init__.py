"""Read the supported file formats, one module each; `read_cohort` uses them as `heatmover.cohort.reader.Reader`."""
