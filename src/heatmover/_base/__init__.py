"""Provide types, checks, words, files, threads, stores and compiled loops to all packages, without any EMD code."""
