"""What the JSON files beside a checkpoint say of its pictures: one module for every package that writes them."""
