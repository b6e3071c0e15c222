"""What a device is: schema, storage model, rates with uncertainties, and the shipped devices."""
