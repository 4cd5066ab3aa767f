"""What an inventory must say before a playbook may touch a machine. Needs nothing but what Ansible itself needs."""
