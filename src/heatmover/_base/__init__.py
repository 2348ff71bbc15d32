"""What every room may use: types, checks, words, files, threads, stores, compiled loops; knows nothing of EMD."""
