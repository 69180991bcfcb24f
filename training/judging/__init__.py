"""Judge the kernels of many episodes: in processes of this machine, in Ray actors, or through
another process's pool."""
