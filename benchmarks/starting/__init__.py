"""Whole processes, from their start to a first result: khaljit's and its peers'."""
