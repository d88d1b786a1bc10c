"""One module for each method whose report says more than its summary and table."""
