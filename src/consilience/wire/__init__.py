"""What crosses between parties: messages, released values, their bytes, and the record of them."""
