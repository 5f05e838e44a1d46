"""Chunk kernels: the element-wise part of the loss, one implementation per kind of device."""
