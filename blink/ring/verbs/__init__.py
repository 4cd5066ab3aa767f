"""The ring over RDMA verbs: a transport whose reads and writes are one-sided operations of a network card."""
