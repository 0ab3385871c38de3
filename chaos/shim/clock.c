/* A wall clock of its own for one process: it jumps and drifts while the process runs.
 *
 * Preloaded (LD_PRELOAD); chaos/shim/clock.py builds and drives it. RAFTLOG_CLOCK names a file of four numbers of 64
 * bits, shared with the driver: a count that is odd while the others change; nanoseconds to add; billionths by which the
 * clock runs too fast; and the moment (CLOCK_MONOTONIC, ns) from which on it does. CLOCK_REALTIME is all that is faked.
 * The monotonic clock stays true: waits of threads and of the event loop compare it with the kernel's, so a process that
 * reads another one hangs or spins (tried with libfaketime 0.9.10). */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

static int (*real_gettime)(clockid_t, struct timespec *);
static const volatile int64_t *control;

__attribute__((constructor)) static void begin(void) {
    if (real_gettime != NULL) return;
    int (*found)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    if (found == NULL) abort();
    const char *path = getenv("RAFTLOG_CLOCK");
    int descriptor = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor >= 0) {
        void *shared = mmap(NULL, 4 * sizeof(int64_t), PROT_READ, MAP_SHARED, descriptor, 0);
        if (shared != MAP_FAILED) control = shared;
        close(descriptor);
    }
    real_gettime = found;
}

/* What is to be added to the true time now. */
static int64_t wrong_by(void) {
    int64_t count, offset, rate, since;
    if (control == NULL) return 0;
    do {
        count = __atomic_load_n(&control[0], __ATOMIC_ACQUIRE);
        offset = control[1];
        rate = control[2];
        since = control[3];
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
    } while ((count & 1) != 0 || count != __atomic_load_n(&control[0], __ATOMIC_ACQUIRE));
    if (rate != 0) {
        struct timespec now;
        real_gettime(CLOCK_MONOTONIC, &now);
        int64_t passed = now.tv_sec * SECOND + now.tv_nsec - since;
        offset += (int64_t)((__int128)passed * rate / SECOND);
    }
    return offset;
}

int clock_gettime(clockid_t clock, struct timespec *to) {
    begin();
    int result = real_gettime(clock, to);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t time = to->tv_sec * SECOND + to->tv_nsec + wrong_by();
        to->tv_sec = time / SECOND;
        to->tv_nsec = time % SECOND;
    }
    return result;
}

int gettimeofday(struct timeval *restrict to, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
    to->tv_sec = now.tv_sec;
    to->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *to) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (to != NULL) *to = now.tv_sec;
    return now.tv_sec;
}
