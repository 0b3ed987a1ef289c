/* A shared object, but no backend. */
#include "dgpu/types.h"

DGPU_API int something_else(void);
int something_else(void) { return 1; }
