"""DAGs that docs/recipes.md shows, each complete."""
