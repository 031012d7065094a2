/* Semantic versioning; before 1.0 a minor version may change the interface (CHANGELOG.md). */
#pragma once

#include "tensor/extern_c.h"

TD_BEGIN_C

#define TANDEM_VERSION "0.2.0" /* of the headers that a program is compiled with */

/* The version of the library that the program is linked with. The text is static. */
const char *td_version(void);

TD_END_C
