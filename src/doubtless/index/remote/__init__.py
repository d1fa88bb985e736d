"""What indexes in somebody else's database share: changes that count in one moment, measured proposals."""
