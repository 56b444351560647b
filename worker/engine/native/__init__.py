"""CPU kernels in C++ for float32: built on the machine they run on, loaded into PyTorch."""
