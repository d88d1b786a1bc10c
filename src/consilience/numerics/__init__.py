"""Pure kernels: arrays in, arrays out."""
