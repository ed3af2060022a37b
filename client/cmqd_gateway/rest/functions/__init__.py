"""The functions of the operations, by noun. Each reads its call, asks the client and converts the result."""
