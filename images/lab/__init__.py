"""The lab: two virtual machines that speak RDMA to each other. `python -m images.lab --help` drives them."""
