// keeps the room's object library non-empty until its first source lands
