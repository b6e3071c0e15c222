"""Inverse planning: from a target speed to the least device, the largest model and the cheapest parts."""
