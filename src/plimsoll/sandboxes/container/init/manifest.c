/* The baseline of a sandbox, and the way back to it.
 *
 * The manifest is a sealed file in memory that init holds: a header, the entries in order of
 * their paths' hashes, then the paths that were to be left out, each ended by a zero.
 */
#include "plimsoll.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    TICK_MS = 20,        /* the kernel's clock for files ticks this often at the least */
    SMALL_FOLDER = 4096, /* bytes of one that an overlay makes when it is first changed */
};

struct entry {
    uint64_t path, state;
    struct timespec atime, mtime; /* of a folder, as its size */
    int64_t size;
};

struct header {
    uint64_t key[2];
    uint64_t count;
    uint64_t left_out; /* bytes of them */
};

static struct walk walk;
static struct entry *entries;
static size_t count, room;

static unsigned char *present;
static unsigned long long removed, put_right;
static const char *doubt; /* what is wrong with the place at which the walk stopped */

static enum met collect(struct walk *at, const struct place *place)
{
    (void)at;
    if (count == room) {
        size_t larger = room ? room * 2 : 16384;
        struct entry *grown = realloc(entries, larger * sizeof *grown);
        if (!grown) {
            errno = ENOMEM;
            return STOP;
        }
        entries = grown;
        room = larger;
    }
    entries[count++] = (struct entry){.path = place->path, .state = place->state,
                                      .atime = place->atime, .mtime = place->mtime,
                                      .size = place->size};
    return GO_ON;
}

static int by_path(const void *left, const void *right)
{
    const struct entry *a = left, *b = right;
    return (a->path > b->path) - (a->path < b->path);
}

static void put(int file, const void *bytes, size_t size)
{
    for (const char *at = bytes; size;) {
        ssize_t done = write(file, at, size);
        if (done < 0 && errno != EINTR)
            fail_and_exit("the manifest cannot be kept: %s", strerror(errno));
        at += done > 0 ? done : 0;
        size -= done > 0 ? (size_t)done : 0;
    }
}

static int keep_manifest(char **left_out)
{
    struct header header = {.key = {walk.key[0], walk.key[1]}, .count = count};
    for (char **path = left_out; *path; path++)
        header.left_out += strlen(*path) + 1;
    int file = memfd_create("manifest", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (file < 0)
        fail_and_exit("the manifest cannot be kept: %s", strerror(errno));
    put(file, &header, sizeof header);
    put(file, entries, count * sizeof *entries);
    for (char **path = left_out; *path; path++)
        put(file, *path, strlen(*path) + 1);
    fcntl(file, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL);
    return file;
}

/* A change within the tick of the clock in which an entry was seen would not show. */
static void let_clock_pass(void)
{
    struct timespec now, nap = {.tv_nsec = 2000000};
    for (int i = 0; i < TICK_MS; i++) {
        clock_gettime(CLOCK_REALTIME_COARSE, &now);
        long long ms = (now.tv_sec - walk.latest.tv_sec) * 1000LL +
                       (now.tv_nsec - walk.latest.tv_nsec) / 1000000;
        if (ms > TICK_MS)
            return;
        nanosleep(&nap, NULL);
    }
}

void run_baseline(char *payload, size_t size)
{
    static struct fields done;
    char **left_out;
    if (split_fields(payload, size, &left_out) < 0)
        fail_and_exit("the request cannot be read");
    if (getrandom(walk.key, sizeof walk.key, 0) != sizeof walk.key || !read_borders(&walk.borders))
        fail_and_exit("the manifest cannot be taken: %s", strerror(errno));
    for (char **path = left_out; *path; path++)
        add_border(&walk.borders, *path, LEFT_OUT);
    walk.meet = collect;
    if (!walk_all(&walk))
        fail_and_exit("%s: %s", walk.path, strerror(errno));
    qsort(entries, count, sizeof *entries, by_path);
    let_clock_pass();
    add_pair(&done, "done", "1");
    add_count(&done, "entries", count);
    report_and_exit(&done, keep_manifest(left_out));
}

static bool load_manifest(void)
{
    struct stat info;
    struct header header;
    if (manifest_fd < 0 || fstat(manifest_fd, &info) < 0)
        return false;
    const char *all = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, manifest_fd, 0);
    if (all == MAP_FAILED)
        return false;
    memcpy(&header, all, sizeof header);
    memcpy(walk.key, header.key, sizeof walk.key);
    entries = (struct entry *)(all + sizeof header);
    count = header.count;
    present = calloc(count + 1, 1);
    if (!present || !read_borders(&walk.borders))
        return false;
    const char *path = (const char *)(entries + count), *end = path + header.left_out;
    for (; path < end; path += strlen(path) + 1)
        if (!add_border(&walk.borders, path, LEFT_OUT))
            return false;
    return true;
}

static enum met in_doubt(const char *why)
{
    doubt = why;
    return STOP;
}

static const struct entry *entry_of(const struct place *place)
{
    struct entry wanted = {.path = place->path};
    return bsearch(&wanted, entries, count, sizeof *entries, by_path);
}

static bool same(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

/* The times of a folder, which whatever is made or removed in it changes, and this walk too. */
static bool put_times_right(const struct place *place, int folder)
{
    struct stat info;
    const struct entry *entry = entry_of(place);
    struct timespec times[] = {entry->atime, entry->mtime};
    if (fstat(folder, &info) < 0)
        return false;
    /* Some file systems never make a folder smaller: it would tell how much was in it. */
    if (info.st_size != entry->size && info.st_size > SMALL_FOLDER) {
        doubt = "has grown";
        return false;
    }
    put_right += !same(&info.st_mtim, &entry->mtime);
    if (same(&info.st_mtim, &entry->mtime) && same(&info.st_atim, &entry->atime))
        return true;
    return futimens(folder, times) == 0;
}

static enum met find(const struct place *place)
{
    const struct entry *entry = entry_of(place);
    if (!entry)
        return in_doubt("is new");
    present[entry - entries] = 1;
    return entry->state == place->state ? GO_ON : in_doubt("was changed");
}

static enum met compare(struct walk *at, const struct place *place)
{
    (void)at;
    enum met found = find(place);
    if (found == GO_ON && !same(&place->mtime, &entry_of(place)->mtime))
        return in_doubt("has another time");
    return found;
}

static enum met put_back(struct walk *at, const struct place *place)
{
    (void)at;
    enum met found = find(place);
    if (found == GO_ON || entry_of(place) || !place->removable)
        return found;
    doubt = NULL;
    if (remove_tree(place->parent, place->name))
        return in_doubt("is new and cannot be removed");
    removed++;
    return PASS_OVER;
}

static _Noreturn void say(const char *why)
{
    static struct fields said;
    add_pair(&said, why ? "doubt" : "done", why ? why : "1");
    add_count(&said, "removed", removed);
    report_and_exit(&said, -1);
}

static void prove(meet *meet)
{
    static char text[1024];
    size_t missing = 0;
    memset(present, 0, count);
    walk.meet = meet;
    walk.leave = put_times_right;
    if (!walk_all(&walk)) {
        const char *why = doubt ? doubt : strerror(errno);
        snprintf(text, sizeof text, "%.800s %s", *walk.path ? walk.path : "/", why);
        say(text);
    }
    for (size_t i = 0; i < count; i++)
        missing += !present[i];
    if (missing) {
        snprintf(text, sizeof text, "%zu of %zu entries are missing", missing, count);
        say(text);
    }
}

/* Shared memory, semaphores and queues of System V outlive the processes that made them. */
static void look_for_ipc(const char *kind)
{
    char path[64], text[4096], why[64];
    snprintf(path, sizeof path, "/proc/sysvipc/%s", kind);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return;
    ssize_t got = read(file, text, sizeof text);
    close(file);
    const char *first = got > 0 ? memchr(text, '\n', (size_t)got) : NULL;
    if (first && first + 1 < text + got) { /* more than the line of titles */
        snprintf(why, sizeof why, "System V IPC is left over (%s)", kind);
        say(why);
    }
}

/* Everything was killed before. What is new is removed, and folders get their times back; if
 * there was anything to do, all is looked at again, and has to be as it was. */
void run_reset(char *payload, size_t size)
{
    (void)payload;
    (void)size;
    if (!load_manifest())
        say("no baseline was taken");
    look_for_ipc("shm");
    look_for_ipc("sem");
    look_for_ipc("msg");
    prove(put_back);
    if (removed || put_right)
        prove(compare);
    say(NULL);
}
