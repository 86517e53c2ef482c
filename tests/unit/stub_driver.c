/* A CUDA driver that does nothing but remember the last launch: enough of libcuda.so.1 for triton
 * to load and launch kernels on a machine without a GPU. */
#include <cuda.h>
#include <string.h>

enum { MOST = 64 };
int stub_parameters = 0;          /* to remember of a launch */
/* grid x, grid y, threads, shared bytes, blocks of a cluster (0: none), whether it may overlap */
unsigned stub_launch[6];
unsigned long long stub_stream;
unsigned long long stub_values[MOST];
unsigned char stub_maps[MOST][sizeof(CUtensorMap)]; /* of parameters aligned like a tensor map */

CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **parameters, void **e) {
  stub_launch[0] = c->gridDimX, stub_launch[1] = c->gridDimY;
  stub_launch[2] = c->blockDimX, stub_launch[3] = c->sharedMemBytes;
  stub_launch[4] = stub_launch[5] = 0;
  for (unsigned i = 0; i < c->numAttrs; i++) {
    const CUlaunchAttribute *attribute = &c->attrs[i];
    if (attribute->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
      stub_launch[4] = attribute->value.clusterDim.x;
    if (attribute->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
      stub_launch[5] = attribute->value.programmaticStreamSerializationAllowed;
  }
  stub_stream = (unsigned long long)c->hStream;
  for (int i = 0; i < stub_parameters; i++) {
    memcpy(&stub_values[i], parameters[i], sizeof stub_values[i]);
    if ((unsigned long long)parameters[i] % 64 == 0)
      memcpy(stub_maps[i], parameters[i], sizeof stub_maps[i]);
  }
  return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
                                void *base, const cuuint64_t *extents, const cuuint64_t *strides,
                                const cuuint32_t *box, const cuuint32_t *steps,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  unsigned long long facts[] = {(unsigned long long)base, extents[0], extents[1], strides[0],
                                box[0], box[1], swizzle, type, promotion, fill};
  memset(map, 0, sizeof *map);
  memcpy(map, facts, sizeof facts);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute name, CUdevice device) {
  *value = name == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN ? 232448 : 128;
  return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute name, CUfunction f) {
  *value = name == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024
           : name == CU_FUNC_ATTRIBUTE_NUM_REGS            ? 168
                                                           : 0;
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute name, CUdeviceptr pointer) {
  *(CUdeviceptr *)data = pointer;
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *f, CUmodule m, const char *n) {
  *f = (CUfunction)16;
  return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule *m, const void *image) {
  *m = (CUmodule)16;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *c) {
  *c = (CUcontext)16;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **text) {
  *text = "stub";
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

/* The rest does nothing, whatever its arguments. */
int stub_nothing(void) { return 0; }
#define NOTHING(name) __asm__(".globl " #name "\n" #name " = stub_nothing");
NOTHING(cuInit)
NOTHING(cuCtxGetLimit)
NOTHING(cuCtxSetCurrent)
NOTHING(cuCtxSetLimit)
NOTHING(cuCtxGetDevice)
NOTHING(cuCtxPushCurrent_v2)
NOTHING(cuCtxPopCurrent_v2)
NOTHING(cuDeviceGet)
NOTHING(cuDeviceGetCount)
NOTHING(cuDevicePrimaryCtxRetain)
NOTHING(cuFuncSetAttribute)
NOTHING(cuFuncSetCacheConfig)
NOTHING(cuModuleUnload)
NOTHING(cuOccupancyMaxActiveClusters)
NOTHING(cuStreamIsCapturing)
