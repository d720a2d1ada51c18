"""Many peers that misbehave: an honest client must not notice them."""
