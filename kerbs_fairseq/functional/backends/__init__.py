"""Chunk kernels: the element-wise part of the loss, with one implementation per kind of device."""
