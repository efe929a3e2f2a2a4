/* A libnvidia-ml.so.1 without a driver: answers the NVML calls that supervisor/sensors/nvml_probe.py makes.
 *
 * The file named by NVML_SCENARIO is read again at every call, so that a test can change it. One fact a line:
 *   driver CODE                 nvmlInit returns this nvmlReturn_t
 *   gpu INDEX KEY VALUE         KEY: name uuid total used grow utilisation temperature reasons ecc mode
 *                               (grow: bytes that used rises by with every call for the memory)
 *   process INDEX compute|graphics PID BYTES|unknown
 *   xid INDEX CODE              delivered once, in the order of the file
 *   fail FUNCTION CODE          FUNCTION returns this nvmlReturn_t
 *   hang FUNCTION N             the N-th call of FUNCTION and all later ones never return
 *   crash FUNCTION N            the N-th call of FUNCTION is a bad pointer
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, TIMEOUT = 10 };
enum { MAX_GPUS = 8, MAX_LINES = 128, MAX_COUNTED = 32 };

typedef struct { int index; unsigned memory_calls; } Device;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned version, sensor; int temperature; } Temperature;
typedef struct { unsigned pid; unsigned long long used; unsigned instance, compute_instance; } ProcessInfo;
typedef struct { Device *device; unsigned long long type, data; unsigned instance, compute_instance; } EventData;

static Device devices[MAX_GPUS] = {{0, 0}, {1, 0}, {2, 0}, {3, 0}, {4, 0}, {5, 0}, {6, 0}, {7, 0}};
static char lines[MAX_LINES][256];
static int line_count, xids_delivered, event_set, counted;
static struct { char name[64]; int calls; } calls[MAX_COUNTED];

static void load(void)
{
    const char *path = getenv("NVML_SCENARIO");
    FILE *file = path ? fopen(path, "r") : NULL;
    line_count = 0;
    if (!file) {
        fprintf(stderr, "NVML_SCENARIO names no readable file\n");
        abort();
    }
    while (line_count < MAX_LINES && fgets(lines[line_count], sizeof lines[0], file))
        line_count++;
    fclose(file);
}

static int times_called(const char *function)
{
    for (int i = 0; i < counted; i++)
        if (!strcmp(calls[i].name, function))
            return ++calls[i].calls;
    snprintf(calls[counted].name, sizeof calls[0].name, "%s", function);
    return calls[counted++].calls = 1;
}

/* What happens to a call of this function: the code to return, or no return at all. */
static int enter(const char *function)
{
    char verb[16], name[64];
    int number, times = times_called(function);
    load();
    for (int i = 0; i < line_count; i++) {
        if (sscanf(lines[i], "%15s %63s %d", verb, name, &number) != 3 || strcmp(name, function))
            continue;
        if (!strcmp(verb, "fail"))
            return number;
        if (!strcmp(verb, "hang") && times >= number)
            for (;;)
                pause();
        if (!strcmp(verb, "crash") && times >= number)
            *(volatile int *)8 = 0;
    }
    return SUCCESS;
}

/* The value of a GPU's key into text; 0 when the scenario does not give it. */
static int fact(int index, const char *key, char *text, size_t size)
{
    char name[32], value[128];
    int found;
    for (int i = 0; i < line_count; i++)
        if (sscanf(lines[i], "gpu %d %31s %127[^\n]", &found, name, value) == 3 && found == index &&
            !strcmp(name, key)) {
            snprintf(text, size, "%s", value);
            return 1;
        }
    return 0;
}

static int numeric(Device *device, const char *key, unsigned long long *value)
{
    char text[128];
    if (!fact(device->index, key, text, sizeof text))
        return NOT_SUPPORTED;
    *value = strtoull(text, NULL, 0);
    return SUCCESS;
}

static int words(Device *device, const char *key, char *text, unsigned size)
{
    return fact(device->index, key, text, size) ? SUCCESS : NOT_SUPPORTED;
}

static int memory(Device *device, unsigned long long *total, unsigned long long *used)
{
    unsigned long long grow = 0;
    int code = numeric(device, "total", total);
    if (code || (code = numeric(device, "used", used)))
        return code;
    numeric(device, "grow", &grow);
    *used += grow * device->memory_calls++;
    if (*used > *total)
        *used = *total;
    return SUCCESS;
}

static int processes(Device *device, const char *kind, unsigned *count, ProcessInfo *found)
{
    char which[16], size[32];
    unsigned pid, number = 0;
    int index;
    for (int i = 0; i < line_count; i++) {
        if (sscanf(lines[i], "process %d %15s %u %31s", &index, which, &pid, size) != 4 || index != device->index ||
            strcmp(which, kind))
            continue;
        if (number < *count && found) {
            memset(&found[number], 0, sizeof *found);
            found[number].pid = pid;
            found[number].used = strcmp(size, "unknown") ? strtoull(size, NULL, 0) : ~0ULL;
        }
        number++;
    }
    int fits = number <= *count;
    *count = number;
    return fits ? SUCCESS : INSUFFICIENT_SIZE;
}

#define ENTER() do { int code_ = enter(__func__); if (code_) return code_; } while (0)

int nvmlInitWithFlags(unsigned flags)
{
    int code;
    (void)flags;
    ENTER();
    for (int i = 0; i < line_count; i++)
        if (sscanf(lines[i], "driver %d", &code) == 1)
            return code;
    return SUCCESS;
}

int nvmlShutdown(void) { ENTER(); return SUCCESS; }

const char *nvmlErrorString(int code)
{
    static char text[64];
    snprintf(text, sizeof text, "stand-in error %d", code);
    return text;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    char name[128];
    ENTER();
    for (*count = 0; *count < MAX_GPUS && fact((int)*count, "name", name, sizeof name); ++*count)
        ;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device)
{
    ENTER();
    if (index >= MAX_GPUS)
        return INVALID_ARGUMENT;
    *device = &devices[index];
    return SUCCESS;
}

int nvmlDeviceGetName(Device *device, char *text, unsigned size) { ENTER(); return words(device, "name", text, size); }
int nvmlDeviceGetUUID(Device *device, char *text, unsigned size) { ENTER(); return words(device, "uuid", text, size); }

int nvmlDeviceGetMemoryInfo(Device *device, Memory *info)
{
    ENTER();
    int code = memory(device, &info->total, &info->used);
    info->free = info->total - info->used;
    return code;
}

int nvmlDeviceGetMemoryInfo_v2(Device *device, MemoryV2 *info)
{
    ENTER();
    if (info->version != (sizeof *info | 2u << 24))
        return INVALID_ARGUMENT;
    int code = memory(device, &info->total, &info->used);
    info->reserved = 0;
    info->free = info->total - info->used;
    return code;
}

int nvmlDeviceGetUtilizationRates(Device *device, Utilization *rates)
{
    unsigned long long percent = 0;
    ENTER();
    int code = numeric(device, "utilisation", &percent);
    rates->gpu = (unsigned)percent;
    rates->memory = 0;
    return code;
}

int nvmlDeviceGetTemperature(Device *device, unsigned sensor, unsigned *celsius)
{
    unsigned long long value = 0;
    (void)sensor;
    ENTER();
    int code = numeric(device, "temperature", &value);
    *celsius = (unsigned)value;
    return code;
}

int nvmlDeviceGetTemperatureV(Device *device, Temperature *answer)
{
    unsigned long long value = 0;
    ENTER();
    if (answer->version != (sizeof *answer | 1u << 24))
        return INVALID_ARGUMENT;
    int code = numeric(device, "temperature", &value);
    answer->temperature = (int)value;
    return code;
}

int nvmlDeviceGetCurrentClocksEventReasons(Device *device, unsigned long long *bits)
{
    ENTER();
    return numeric(device, "reasons", bits);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(Device *device, unsigned long long *bits)
{
    ENTER();
    return numeric(device, "reasons", bits);
}

int nvmlDeviceGetTotalEccErrors(Device *device, unsigned type, unsigned counter, unsigned long long *count)
{
    ENTER();
    if (type != 1 || counter != 0)
        return INVALID_ARGUMENT;
    return numeric(device, "ecc", count);
}

int nvmlDeviceGetComputeMode(Device *device, unsigned *mode)
{
    unsigned long long value = 0;
    ENTER();
    int code = numeric(device, "mode", &value);
    *mode = (unsigned)value;
    return code;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Device *device, unsigned *count, ProcessInfo *found)
{
    ENTER();
    return processes(device, "compute", count, found);
}

int nvmlDeviceGetComputeRunningProcesses_v2(Device *device, unsigned *count, ProcessInfo *found)
{
    ENTER();
    return processes(device, "compute", count, found);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(Device *device, unsigned *count, ProcessInfo *found)
{
    ENTER();
    return processes(device, "graphics", count, found);
}

int nvmlDeviceGetGraphicsRunningProcesses_v2(Device *device, unsigned *count, ProcessInfo *found)
{
    ENTER();
    return processes(device, "graphics", count, found);
}

int nvmlEventSetCreate(int **set) { ENTER(); *set = &event_set; return SUCCESS; }
int nvmlEventSetFree(int *set) { ENTER(); return set == &event_set ? SUCCESS : INVALID_ARGUMENT; }

int nvmlDeviceRegisterEvents(Device *device, unsigned long long types, int *set)
{
    (void)device;
    ENTER();
    return types == 8 && set == &event_set ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlEventSetWait_v2(int *set, EventData *event, unsigned milliseconds)
{
    int index, code, seen = 0;
    (void)milliseconds;
    ENTER();
    if (set != &event_set)
        return INVALID_ARGUMENT;
    for (int i = 0; i < line_count; i++)
        if (sscanf(lines[i], "xid %d %d", &index, &code) == 2 && seen++ == xids_delivered && index < MAX_GPUS) {
            memset(event, 0, sizeof *event);
            event->device = &devices[index];
            event->type = 8;
            event->data = (unsigned long long)code;
            xids_delivered++;
            return SUCCESS;
        }
    return TIMEOUT;
}
