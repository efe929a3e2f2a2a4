"""Where two paths of a model part: hooks over two loads of it, the first module that departs named."""
