"""From hits to statements that can be checked: match probability, abstention, covering sets, presence, pairs."""
