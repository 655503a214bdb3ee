"""The coordinator: one asyncio process that keeps all trajectory state and carries out decisions."""
