namespace dgpu {}
