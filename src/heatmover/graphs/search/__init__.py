"""Nearest neighbours and nearest centres: one way for each size and shape of data, chosen by `choose`."""
