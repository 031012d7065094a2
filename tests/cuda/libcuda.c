/* A stand-in for CUDA's driver, libcuda.so.1: it loads whatever cuDNN has compiled, and does
 * nothing else. With it cuDNN makes the plans of attention, whose kernels it compiles for a plan,
 * for a GPU that is only described. */
enum { SUCCESS = 0, STUB_LIBRARY = 34 };

#define ANSWERS(name, status)                                                                      \
    int name(void);                                                                                \
    int name(void)                                                                                 \
    {                                                                                              \
        return status;                                                                             \
    }
#define WORKS(name) ANSWERS(name, SUCCESS)
#define REFUSES(name) ANSWERS(name, STUB_LIBRARY)

/* *result = something; what follows it is not looked at. */
#define GIVES(name, type, value)                                                                   \
    int name(type *result);                                                                        \
    int name(type *result)                                                                         \
    {                                                                                              \
        *result = value;                                                                           \
        return SUCCESS;                                                                            \
    }

static char something;

GIVES(cuDriverGetVersion, int, 13000)
GIVES(cuFuncGetAttribute, int, 0)
GIVES(cuKernelGetAttribute, int, 0)
GIVES(cuLibraryLoadData, void *, &something)
GIVES(cuLibraryGetKernel, void *, &something)
GIVES(cuModuleLoadData, void *, &something)
GIVES(cuModuleLoadDataEx, void *, &something)
GIVES(cuModuleGetFunction, void *, &something)
WORKS(cuFuncSetAttribute)
WORKS(cuKernelSetAttribute)
WORKS(cuLibraryUnload)
WORKS(cuModuleUnload)
REFUSES(cuCtxGetCurrent)
REFUSES(cuCtxGetDevice)
REFUSES(cuCtxGetLimit)
REFUSES(cuCtxPopCurrent)
REFUSES(cuCtxPushCurrent)
REFUSES(cuDeviceGet)
REFUSES(cuDeviceGetAttribute)
REFUSES(cuDeviceGetCount)
REFUSES(cuDevicePrimaryCtxRelease)
REFUSES(cuDevicePrimaryCtxReset)
REFUSES(cuDevicePrimaryCtxRetain)
REFUSES(cuGetErrorName)
REFUSES(cuGetErrorString)
REFUSES(cuInit)
REFUSES(cuLaunchCooperativeKernel)
REFUSES(cuLaunchKernel)
REFUSES(cuLaunchKernelEx)
REFUSES(cuLibraryLoadFromFile)
REFUSES(cuLinkAddData)
REFUSES(cuLinkAddData_v2)
REFUSES(cuLinkAddFile_v2)
REFUSES(cuLinkComplete)
REFUSES(cuLinkCreate)
REFUSES(cuLinkCreate_v2)
REFUSES(cuLinkDestroy)
REFUSES(cuMemcpyDtoH_v2)
REFUSES(cuModuleGetGlobal_v2)
REFUSES(cuModuleLoadFatBinary)
REFUSES(cuOccupancyMaxActiveBlocksPerMultiprocessor)
REFUSES(cuOccupancyMaxPotentialClusterSize)
REFUSES(cuStreamGetCtx)
REFUSES(cuStreamSynchronize)
REFUSES(cuTensorMapEncodeTiled)
