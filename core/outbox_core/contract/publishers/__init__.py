"""Publishers as people describe them: a module per kind, `union` lists the kinds. No IO."""
