/* Stands between one process and its files: records, fails, delays and hangs calls, and kills at the n-th of them.
 *
 * Preloaded (LD_PRELOAD) into any process; chaos/shim/driver.py builds and drives it. Environment:
 *   RAFTLOG_SHIM_ROOTS    folders to watch, absolute and without links, with ':' between them
 *   RAFTLOG_SHIM_CONTROL  the rules, one a line: ID CALL ACTION ARGUMENT NTH TIMES PATTERN; read anew when it changes
 *   RAFTLOG_SHIM_TRACE    a folder: what was done is appended to PID-TIME.trace there, with the bytes that were written
 *
 * A call on a watched file is looked up in the rules, then done, then recorded, before the process learns its result:
 * so whatever the process may have told others about is in the trace. Doing and recording are one step under a lock,
 * but for fsync and fdatasync: they are recorded when they begin and when they end, and what was written in between is
 * not known to be durable. Files are known by the path that /proc/self/fd gives, so nothing is kept per descriptor.
 * Not seen: mmap, sendfile, copy_file_range, io_uring, hard links. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define MAGIC 0x314d4853u /* "SHM1" */
#define ROOTS_MAX 16
#define RULES_MAX 64
#define CONTROL_MAX 65536
#define POLL_NS 5000000L /* how often a call that hangs looks whether it may go on */

/* The numbers are those of chaos/shim/trace.py. */
enum call { PWRITE = 1, WRITE, FTRUNCATE, ALLOCATE, FSYNC, FDATASYNC, RENAME, UNLINK, CREATE, MKDIR, RMDIR };
static const char *const CALL_NAMES[] = {"", "pwrite", "write", "ftruncate", "allocate", "fsync", "fdatasync",
                                         "rename", "unlink", "create", "mkdir", "rmdir"};
enum flag { BEGIN = 1, INJECTED = 2, ZEROS = 4 };
enum action { ERROR = 1, DELAY, HANG, KILL_BEFORE, KILL_AFTER, KILL_HALF };
static const char *const ACTION_NAMES[] = {"", "error", "delay", "hang", "kill-before", "kill-after", "kill-half"};

struct head {
    uint32_t magic, size; /* of the whole record */
    uint64_t time_ns;
    uint32_t call, flags;
    int32_t error;    /* errno, 0 where it succeeded */
    uint32_t rule;    /* 0: none */
    uint32_t action;
    uint32_t serial;  /* of a sync: joins its begin and its end */
    uint64_t offset, length;
    uint32_t path_size, to_size;
    uint64_t data_size;
};

struct rule {
    uint32_t id;
    int call, action; /* call -1: any, -2: fsync and fdatasync, -3: pwrite and write */
    long argument;    /* errno, or milliseconds */
    unsigned long nth, times, seen;
    char pattern[512];
};

static char roots[ROOTS_MAX][PATH_MAX];
static size_t root_sizes[ROOTS_MAX];
static int root_count;
static const char *control_path, *trace_folder;
static struct rule rules[RULES_MAX];
static int rule_count;
static struct stat control_stat;
static int trace_descriptor = -1;
static pid_t trace_pid;
static uint32_t sync_serial;
static pthread_mutex_t order = PTHREAD_MUTEX_INITIALIZER; /* a call and its record */
static pthread_mutex_t rule_lock = PTHREAD_MUTEX_INITIALIZER;

static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static ssize_t (*real_pwritev)(int, const struct iovec *, int, off_t);
static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_writev)(int, const struct iovec *, int);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);
static int (*real_ftruncate)(int, off_t);
static int (*real_fallocate)(int, off_t, off_t);
static int (*real_renameat)(int, const char *, int, const char *);
static int (*real_unlinkat)(int, const char *, int);
static int (*real_mkdirat)(int, const char *, mode_t);
static int (*real_openat)(int, const char *, int, ...);

static void *find(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL) abort();
    return found;
}

__attribute__((constructor)) static void begin(void) {
    if (real_openat != NULL) return;
    real_pwrite = find("pwrite64");
    real_pwritev = find("pwritev64");
    real_write = find("write");
    real_writev = find("writev");
    real_fsync = find("fsync");
    real_fdatasync = find("fdatasync");
    real_ftruncate = find("ftruncate64");
    real_fallocate = find("posix_fallocate64");
    real_renameat = find("renameat");
    real_unlinkat = find("unlinkat");
    real_mkdirat = find("mkdirat");
    real_openat = find("openat64");
    control_path = getenv("RAFTLOG_SHIM_CONTROL");
    trace_folder = getenv("RAFTLOG_SHIM_TRACE");
    const char *from = getenv("RAFTLOG_SHIM_ROOTS");
    while (from != NULL && *from != '\0' && root_count < ROOTS_MAX) {
        size_t size = strcspn(from, ":");
        if (size > 0 && size < PATH_MAX) {
            memcpy(roots[root_count], from, size);
            root_sizes[root_count++] = size;
        }
        from += size + (from[size] == ':');
    }
}

/* ---------------------------------------------------------------------------------------------------------------
 * Which file it is */

static int is_watched(const char *path) {
    for (int i = 0; i < root_count; i++)
        if (strncmp(path, roots[i], root_sizes[i]) == 0 && (path[root_sizes[i]] == '/' || path[root_sizes[i]] == '\0'))
            return 1;
    return 0;
}

/* The path of an open file, if it is watched. Safe in a signal handler. */
static int path_of(int descriptor, char *path) {
    if (root_count == 0 || descriptor < 0) return 0;
    char link[32] = "/proc/self/fd/";
    char digits[12];
    int size = 0, number = descriptor;
    do digits[size++] = (char)('0' + number % 10); while (number /= 10);
    char *end = link + strlen(link);
    while (size > 0) *end++ = digits[--size];
    *end = '\0';
    ssize_t got = syscall(SYS_readlink, link, path, PATH_MAX - 1);
    if (got <= 0) return 0;
    path[got] = '\0';
    return is_watched(path);
}

/* The path of a name, links in the folder above it resolved, if it is watched. */
static int path_at(int folder, const char *name, char *path) {
    if (root_count == 0 || name == NULL) return 0;
    char above[PATH_MAX], base[PATH_MAX], full[PATH_MAX * 2];
    if (name[0] == '/') {
        snprintf(full, sizeof full, "%s", name);
    } else {
        if (folder == AT_FDCWD) {
            if (getcwd(above, sizeof above) == NULL) return 0;
        } else {
            char link[64];
            snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
            ssize_t got = readlink(link, above, sizeof above - 1);
            if (got <= 0) return 0;
            above[got] = '\0';
        }
        snprintf(full, sizeof full, "%s/%s", above, name);
    }
    size_t size = strlen(full);
    while (size > 1 && full[size - 1] == '/') full[--size] = '\0';
    char *slash = strrchr(full, '/');
    if (slash == NULL || strlen(slash) >= sizeof base || size >= PATH_MAX) return 0;
    strcpy(base, slash + 1);
    slash[slash == full] = '\0';
    if (realpath(full, above) == NULL) return 0;
    int got = snprintf(path, PATH_MAX, "%s/%s", strcmp(above, "/") == 0 ? "" : above, base);
    return got < PATH_MAX && is_watched(path);
}

/* ---------------------------------------------------------------------------------------------------------------
 * Rules */

static int number_of(const char *name, const char *const *names, int count) {
    for (int i = 1; i < count; i++)
        if (strcmp(name, names[i]) == 0) return i;
    return 0;
}

/* Reads the control file if it is another one than before; a rule that stays keeps its count. */
static void read_rules(void) {
    struct stat now;
    if (control_path == NULL) return;
    if (stat(control_path, &now) != 0) {
        rule_count = 0;
        memset(&control_stat, 0, sizeof control_stat);
        return;
    }
    if (now.st_ino == control_stat.st_ino && now.st_mtim.tv_sec == control_stat.st_mtim.tv_sec &&
        now.st_mtim.tv_nsec == control_stat.st_mtim.tv_nsec && now.st_size == control_stat.st_size)
        return;
    int descriptor = real_openat(AT_FDCWD, control_path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return;
    static char text[CONTROL_MAX];
    ssize_t size = read(descriptor, text, sizeof text - 1);
    close(descriptor);
    if (size < 0) return;
    text[size] = '\0';
    control_stat = now;
    static struct rule fresh[RULES_MAX];
    int count = 0;
    char *rest = text, *line;
    while ((line = strsep(&rest, "\n")) != NULL && count < RULES_MAX) {
        char call[32], action[32];
        struct rule rule;
        memset(&rule, 0, sizeof rule);
        if (sscanf(line, "%u %31s %31s %ld %lu %lu %511[^\n]", &rule.id, call, action, &rule.argument, &rule.nth,
                   &rule.times, rule.pattern) != 7)
            continue;
        rule.action = number_of(action, ACTION_NAMES, 7);
        rule.call = strcmp(call, "any") == 0    ? -1
                    : strcmp(call, "sync") == 0 ? -2
                    : strcmp(call, "data") == 0 ? -3
                                                : number_of(call, CALL_NAMES, 12);
        if (rule.action == 0 || rule.call == 0) continue;
        for (int i = 0; i < rule_count; i++)
            if (rules[i].id == rule.id) rule.seen = rules[i].seen;
        fresh[count++] = rule;
    }
    memcpy(rules, fresh, sizeof(struct rule) * (size_t)count);
    rule_count = count;
}

static int fits(const struct rule *rule, int call, const char *path, const char *to) {
    if (rule->call > 0 && rule->call != call) return 0;
    if (rule->call == -2 && call != FSYNC && call != FDATASYNC) return 0;
    if (rule->call == -3 && call != PWRITE && call != WRITE) return 0;
    return fnmatch(rule->pattern, path, 0) == 0 || (to != NULL && fnmatch(rule->pattern, to, 0) == 0);
}

static int is_there(uint32_t id) {
    pthread_mutex_lock(&rule_lock);
    read_rules();
    int found = 0;
    for (int i = 0; i < rule_count; i++) found |= rules[i].id == id;
    pthread_mutex_unlock(&rule_lock);
    return found;
}

static void record(int call, int flags, int error, const struct rule *rule, uint32_t serial, uint64_t offset,
                   uint64_t length, const char *path, const char *to, const struct iovec *data, int parts);

static _Noreturn void die(void) {
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;) pause();
}

/* What is to happen to this call: the rule that fails it or kills, if any (`action` 0: none), after every delay. */
static struct rule decide(int call, const char *path, const char *to) {
    struct rule chosen, waits[RULES_MAX];
    int count = 0;
    memset(&chosen, 0, sizeof chosen);
    pthread_mutex_lock(&rule_lock);
    read_rules();
    for (int i = 0; i < rule_count; i++) {
        struct rule *rule = &rules[i];
        if (!fits(rule, call, path, to)) continue;
        rule->seen++;
        if (rule->seen < rule->nth || (rule->times != 0 && rule->seen >= rule->nth + rule->times)) continue;
        if (rule->action == DELAY || rule->action == HANG)
            waits[count++] = *rule;
        else if (chosen.action == 0)
            chosen = *rule;
    }
    pthread_mutex_unlock(&rule_lock);
    for (int i = 0; i < count; i++) {
        record(call, BEGIN | INJECTED, 0, &waits[i], 0, 0, 0, path, to, NULL, 0);
        struct timespec pause = {0, POLL_NS};
        if (waits[i].action == DELAY) {
            pause.tv_sec = waits[i].argument / 1000;
            pause.tv_nsec = waits[i].argument % 1000 * 1000000L;
            while (nanosleep(&pause, &pause) != 0 && errno == EINTR) continue;
        } else {
            while (is_there(waits[i].id)) nanosleep(&pause, NULL);
        }
    }
    if (chosen.action == KILL_BEFORE) {
        record(call, BEGIN | INJECTED, 0, &chosen, 0, 0, 0, path, to, NULL, 0);
        die();
    }
    return chosen;
}

/* ---------------------------------------------------------------------------------------------------------------
 * Trace */

static int is_zero(const char *from, size_t size) {
    return size == 0 || (from[0] == 0 && memcmp(from, from + 1, size - 1) == 0);
}

static void append(const struct iovec *parts, int count) {
    struct iovec left[8];
    if (trace_pid != getpid()) { /* the first record, or a child after fork */
        char name[PATH_MAX];
        struct timespec now;
        trace_pid = getpid();
        clock_gettime(CLOCK_MONOTONIC, &now); /* a pid may come again */
        snprintf(name, sizeof name, "%s/%d-%lld.trace", trace_folder, trace_pid,
                 (long long)now.tv_sec * 1000000000 + now.tv_nsec);
        trace_descriptor = real_openat(AT_FDCWD, name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    }
    memcpy(left, parts, sizeof(struct iovec) * (size_t)count);
    for (int i = 0; i < count;) {
        ssize_t done = real_writev(trace_descriptor, left + i, count - i);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) die(); /* without a record nobody could tell what was durable */
        while (i < count && (size_t)done >= left[i].iov_len) done -= (ssize_t)left[i++].iov_len;
        if (i < count) left[i].iov_base = (char *)left[i].iov_base + done, left[i].iov_len -= (size_t)done;
    }
}

/* Appends one record. The caller holds `order` where order counts; records do not interleave in any case. */
static void record(int call, int flags, int error, const struct rule *rule, uint32_t serial, uint64_t offset,
                   uint64_t length, const char *path, const char *to, const struct iovec *data, int parts) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    if (trace_folder == NULL) return;
    int kept = errno;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    struct head head = {MAGIC, 0, (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec, (uint32_t)call,
                        (uint32_t)flags, error, rule ? rule->id : 0, rule ? (uint32_t)rule->action : 0, serial, offset,
                        length, (uint32_t)strlen(path), to ? (uint32_t)strlen(to) : 0, 0};
    struct iovec all[4] = {{&head, sizeof head}, {(void *)path, head.path_size}, {(void *)to, head.to_size}};
    int count = 3;
    if (parts == 1 && length > 0) {
        if (is_zero(data->iov_base, length)) {
            head.flags |= ZEROS;
        } else {
            all[count++] = (struct iovec){data->iov_base, length};
            head.data_size = length;
        }
    }
    head.size = (uint32_t)(sizeof head + head.path_size + head.to_size);
    pthread_mutex_lock(&lock);
    append(all, count);
    pthread_mutex_unlock(&lock);
    errno = kept;
}

/* ---------------------------------------------------------------------------------------------------------------
 * Writes */

static ssize_t do_write(int call, int descriptor, const void *from, size_t size, off_t offset, const char *path) {
    struct rule rule = decide(call, path, NULL);
    if (rule.action == ERROR) {
        record(call, INJECTED, (int)rule.argument, &rule, 0, (uint64_t)offset, 0, path, NULL, NULL, 0);
        errno = (int)rule.argument;
        return -1;
    }
    if (rule.action == KILL_HALF) size = size / 2;
    pthread_mutex_lock(&order);
    ssize_t done = call == PWRITE ? real_pwrite(descriptor, from, size, offset) : real_write(descriptor, from, size);
    int error = done < 0 ? errno : 0;
    if (call == WRITE && done >= 0) offset = lseek(descriptor, 0, SEEK_CUR) - done;
    struct iovec data = {(void *)from, done > 0 ? (size_t)done : 0};
    record(call, rule.action ? INJECTED : 0, error, rule.action ? &rule : NULL, 0, (uint64_t)offset,
           done > 0 ? (uint64_t)done : 0, path, NULL, &data, 1);
    if (rule.action) die();
    pthread_mutex_unlock(&order);
    errno = error;
    return done;
}

static ssize_t gathered(int call, int descriptor, const struct iovec *parts, int count, off_t offset, const char *path) {
    size_t size = 0;
    for (int i = 0; i < count; i++) size += parts[i].iov_len;
    char *all = malloc(size ? size : 1), *to = all;
    if (all == NULL) {
        errno = ENOMEM;
        return -1;
    }
    for (int i = 0; i < count; i++) to = mempcpy(to, parts[i].iov_base, parts[i].iov_len);
    ssize_t done = do_write(call, descriptor, all, size, offset, path);
    int kept = errno;
    free(all);
    errno = kept;
    return done;
}

ssize_t pwrite64(int descriptor, const void *from, size_t size, off64_t offset) {
    char path[PATH_MAX];
    begin();
    if (!path_of(descriptor, path)) return real_pwrite(descriptor, from, size, offset);
    return do_write(PWRITE, descriptor, from, size, offset, path);
}

ssize_t pwrite(int descriptor, const void *from, size_t size, off_t offset) {
    return pwrite64(descriptor, from, size, offset);
}

ssize_t pwritev64(int descriptor, const struct iovec *parts, int count, off64_t offset) {
    char path[PATH_MAX];
    begin();
    if (!path_of(descriptor, path)) return real_pwritev(descriptor, parts, count, offset);
    return gathered(PWRITE, descriptor, parts, count, offset, path);
}

ssize_t pwritev(int descriptor, const struct iovec *parts, int count, off_t offset) {
    return pwritev64(descriptor, parts, count, offset);
}

ssize_t pwritev64v2(int descriptor, const struct iovec *parts, int count, off64_t offset, int flags) {
    static ssize_t (*real)(int, const struct iovec *, int, off_t, int);
    char path[PATH_MAX];
    begin();
    if (!path_of(descriptor, path)) {
        if (real == NULL) real = find("pwritev64v2");
        return real(descriptor, parts, count, offset, flags);
    }
    if (flags != 0) { /* RWF_DSYNC and the like would be durable by themselves: nobody here uses them */
        errno = EOPNOTSUPP;
        return -1;
    }
    return gathered(PWRITE, descriptor, parts, count, offset, path);
}

ssize_t pwritev2(int descriptor, const struct iovec *parts, int count, off_t offset, int flags) {
    return pwritev64v2(descriptor, parts, count, offset, flags);
}

ssize_t write(int descriptor, const void *from, size_t size) {
    char path[PATH_MAX];
    begin();
    if (!path_of(descriptor, path)) return real_write(descriptor, from, size);
    return do_write(WRITE, descriptor, from, size, 0, path);
}

ssize_t writev(int descriptor, const struct iovec *parts, int count) {
    char path[PATH_MAX];
    begin();
    if (!path_of(descriptor, path)) return real_writev(descriptor, parts, count);
    return gathered(WRITE, descriptor, parts, count, 0, path);
}

/* ---------------------------------------------------------------------------------------------------------------
 * Syncs */

static int synced(int call, int descriptor) {
    char path[PATH_MAX];
    int (*real)(int) = call == FSYNC ? real_fsync : real_fdatasync;
    if (!path_of(descriptor, path)) return real(descriptor);
    struct rule rule = decide(call, path, NULL);
    pthread_mutex_lock(&order);
    uint32_t serial = ++sync_serial;
    if (path_of(descriptor, path)) record(call, BEGIN, 0, NULL, serial, 0, 0, path, NULL, NULL, 0);
    pthread_mutex_unlock(&order);
    int failed = rule.action == ERROR || rule.action == KILL_HALF; /* half a sync is one that began */
    int result = failed ? -1 : real(descriptor);
    int error = rule.action == ERROR ? (int)rule.argument : result < 0 ? errno : 0;
    pthread_mutex_lock(&order);
    record(call, rule.action == KILL_HALF ? BEGIN | INJECTED : rule.action ? INJECTED : 0, error,
           rule.action ? &rule : NULL, serial, 0, 0, path, NULL, NULL, 0);
    if (rule.action == KILL_AFTER || rule.action == KILL_HALF) die();
    pthread_mutex_unlock(&order);
    errno = error;
    return result;
}

int fsync(int descriptor) {
    begin();
    return synced(FSYNC, descriptor);
}

int fdatasync(int descriptor) {
    begin();
    return synced(FDATASYNC, descriptor);
}

/* ---------------------------------------------------------------------------------------------------------------
 * Everything else: done and recorded under the lock; -1 and errno where a rule says so */

#define DO(CALL, OFFSET, LENGTH, PATH, TO, WORK)                                                                       \
    struct rule rule = decide(CALL, PATH, TO);                                                                         \
    int result = -1, error = (int)rule.argument;                                                                       \
    pthread_mutex_lock(&order);                                                                                        \
    if (rule.action != ERROR) {                                                                                        \
        result = (WORK);                                                                                               \
        error = result < 0 ? errno : 0;                                                                                \
    }                                                                                                                  \
    record(CALL, rule.action ? INJECTED : 0, error, rule.action ? &rule : NULL, 0, (uint64_t)(OFFSET),                 \
           (uint64_t)(LENGTH), PATH, TO, NULL, 0);                                                                     \
    if (rule.action == KILL_AFTER || rule.action == KILL_HALF) die();                                                  \
    pthread_mutex_unlock(&order);                                                                                      \
    errno = error;

int ftruncate64(int descriptor, off64_t size) {
    char path[PATH_MAX];
    begin();
    if (!path_of(descriptor, path)) return real_ftruncate(descriptor, size);
    DO(FTRUNCATE, 0, size, path, NULL, real_ftruncate(descriptor, size))
    return result;
}

int ftruncate(int descriptor, off_t size) { return ftruncate64(descriptor, size); }

/* As posix_fallocate, with errno. */
static int allocated(int descriptor, off_t offset, off_t size) {
    int error = real_fallocate(descriptor, offset, size);
    if (error == 0) return 0;
    errno = error;
    return -1;
}

int posix_fallocate64(int descriptor, off64_t offset, off64_t size) {
    char path[PATH_MAX];
    begin();
    if (!path_of(descriptor, path)) return real_fallocate(descriptor, offset, size);
    DO(ALLOCATE, offset, size, path, NULL, allocated(descriptor, offset, size))
    return result < 0 ? error : 0;
}

int posix_fallocate(int descriptor, off_t offset, off_t size) { return posix_fallocate64(descriptor, offset, size); }

int renameat(int one, const char *from, int other, const char *to) {
    char path[PATH_MAX], path_to[PATH_MAX];
    begin();
    if (!path_at(one, from, path) || !path_at(other, to, path_to)) return real_renameat(one, from, other, to);
    DO(RENAME, 0, 0, path, path_to, real_renameat(one, from, other, to))
    return result;
}

int rename(const char *from, const char *to) { return renameat(AT_FDCWD, from, AT_FDCWD, to); }

int unlinkat(int folder, const char *name, int flags) {
    char path[PATH_MAX];
    begin();
    if (!path_at(folder, name, path)) return real_unlinkat(folder, name, flags);
    int call = flags & AT_REMOVEDIR ? RMDIR : UNLINK;
    DO(call, 0, 0, path, NULL, real_unlinkat(folder, name, flags))
    return result;
}

int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }

int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }

int mkdirat(int folder, const char *name, mode_t mode) {
    char path[PATH_MAX];
    begin();
    if (!path_at(folder, name, path)) return real_mkdirat(folder, name, mode);
    DO(MKDIR, 0, 0, path, NULL, real_mkdirat(folder, name, mode))
    return result;
}

int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }

static int opened(int folder, const char *name, int flags, mode_t mode) {
    char path[PATH_MAX];
    struct stat before;
    begin();
    if (!(flags & (O_CREAT | O_TRUNC)) || !path_at(folder, name, path))
        return real_openat(folder, name, flags, mode);
    int is_old = fstatat(folder, name, &before, 0) == 0;
    if (is_old && (!(flags & O_TRUNC) || before.st_size == 0)) return real_openat(folder, name, flags, mode);
    int call = is_old ? FTRUNCATE : CREATE;
    DO(call, 0, 0, path, NULL, real_openat(folder, name, flags, mode))
    return result;
}

int openat64(int folder, const char *name, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return opened(folder, name, flags, mode);
}

int openat(int folder, const char *name, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return opened(folder, name, flags, mode);
}

int open64(const char *name, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return opened(AT_FDCWD, name, flags, mode);
}

int open(const char *name, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return opened(AT_FDCWD, name, flags, mode);
}
