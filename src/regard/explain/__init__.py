"""Why a model said what it said, and whether to believe the explanation."""
