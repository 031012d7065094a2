#include "tensor/version.h"

const char *td_version(void)
{
    return TANDEM_VERSION;
}
