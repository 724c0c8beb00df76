"""Small problems with every iterate that the papers prescribe, for any library to check itself."""
