"""Access to a Hugging Face hub that may be hostile: `client` fetches, `transport` bounds and checks every answer."""
