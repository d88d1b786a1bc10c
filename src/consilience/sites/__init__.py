"""Sites: parties that hold rows and a policy, and the gate through which everything leaves."""
