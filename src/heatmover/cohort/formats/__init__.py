"""The files cells come in, one module each, read through one contract (`heatmover.cohort.reader.Reader`)."""
