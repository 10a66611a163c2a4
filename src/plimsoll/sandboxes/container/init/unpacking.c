/* Unpacks a tree stream below a target. No name leaves the target, no link that stands in the
 * target is followed, and no link is made that points out of it. */
#include "plimsoll.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LONGEST = 64 << 10, LINE = 256, KEPT_SKIPS = 20, SKIP_LETTERS = 200 };

struct record {
    char kind;
    unsigned mode;
    long long mtime, size;
    size_t name_size, extra_size;
    char name[LONGEST + 1], extra[LONGEST + 1];
};

static char buffer[256 << 10];
static size_t first, end;

static const char *target;
static int root = -1;

/* The folder that the last entry went to: most entries have the same one as the one before. */
static char folder_name[LONGEST + 1];
static int folder = -1;

static unsigned long long files, bytes, skips;
static struct fields skipped;

static _Noreturn void fail(const char *where)
{
    fail_and_exit("%s: %s", where, strerror(errno));
}

/* More of the stream, behind what is there. */
static void refill(void)
{
    if (first == end)
        first = end = 0;
    if (end == sizeof buffer) {
        memmove(buffer, buffer + first, end - first);
        end -= first;
        first = 0;
    }
    ssize_t got = read(STDIN_FILENO, buffer + end, sizeof buffer - end);
    if (got == 0 || (got < 0 && errno != EINTR))
        fail_and_exit("the transfer broke off");
    end += got > 0 ? (size_t)got : 0;
}

static void take(char *into, size_t size)
{
    while (end - first < size)
        refill();
    memcpy(into, buffer + first, size);
    into[size] = 0;
    first += size;
}

static void read_record(struct record *record)
{
    unsigned uid, gid;
    char *stop;
    while (!(stop = memchr(buffer + first, '\n', end - first))) {
        if (end - first > LINE)
            fail_and_exit("the transfer is not readable: a line is too long");
        refill();
    }
    *stop = 0;
    int found = sscanf(buffer + first, "%c %o %u %u %lld %lld %zu %zu", &record->kind,
                       &record->mode, &uid, &gid, &record->mtime, &record->size,
                       &record->name_size, &record->extra_size);
    if (found != 8 || record->size < 0 || record->name_size > LONGEST ||
        record->extra_size > LONGEST)
        fail_and_exit("the transfer is not readable");
    first = (size_t)(stop + 1 - buffer);
    take(record->name, record->name_size);
    take(record->extra, record->extra_size);
}

/* A folder is there afterwards, in place of whatever was none. */
static bool have_folder(int parent, const char *name)
{
    struct stat info;
    if (mkdirat(parent, name, 0755) == 0)
        return true;
    if (errno != EEXIST || fstatat(parent, name, &info, AT_SYMLINK_NOFOLLOW) < 0)
        return false;
    if (S_ISDIR(info.st_mode))
        return true;
    return unlinkat(parent, name, 0) == 0 && mkdirat(parent, name, 0755) == 0;
}

static int enter(int parent, const char *name)
{
    int deeper = have_folder(parent, name) ? open_folder(parent, name) : -1;
    if (deeper < 0)
        fail(name);
    return deeper;
}

/* The folder for an entry; links on the way are replaced, never followed. */
static int open_parent(const char *path)
{
    if (!*path)
        return root;
    if (folder >= 0 && !strcmp(path, folder_name))
        return folder;
    if (folder >= 0)
        close(folder);
    snprintf(folder_name, sizeof folder_name, "%s", path);
    static char parts[LONGEST + 1];
    memcpy(parts, folder_name, sizeof parts);
    char *rest = parts;
    folder = fcntl(root, F_DUPFD_CLOEXEC, 0);
    for (char *part; (part = strsep(&rest, "/"));) {
        int deeper = enter(folder, part);
        close(folder);
        folder = deeper;
    }
    return folder;
}

static void make_folder(int parent, const char *name, const struct record *record)
{
    int made = enter(parent, name);
    /* Writable and searchable for its owner, or nothing could be put in it. */
    if (fchmod(made, (record->mode & 0777) | 0700) < 0)
        fail(name);
    close(made);
}

static void remove_other(int parent, const char *name)
{
    struct stat info;
    if (fstatat(parent, name, &info, AT_SYMLINK_NOFOLLOW) < 0) {
        if (errno != ENOENT)
            fail(name);
        return;
    }
    if (S_ISDIR(info.st_mode))
        fail_and_exit("%s: a folder stands where a file is to be", name);
    if (unlinkat(parent, name, 0) < 0)
        fail(name);
}

static void fill_file(int file, const char *name, long long left)
{
    while (left) {
        if (first == end)
            refill();
        size_t most = end - first;
        ssize_t put = write(file, buffer + first, (long long)most < left ? most : (size_t)left);
        if (put < 0 && errno != EINTR)
            fail(name);
        first += put > 0 ? (size_t)put : 0;
        left -= put > 0 ? put : 0;
    }
}

/* A line of two numbers; false for the last one. */
static bool read_piece(long long *offset, long long *length)
{
    char *stop;
    while (!(stop = memchr(buffer + first, '\n', end - first))) {
        if (end - first > LINE)
            fail_and_exit("the transfer is not readable: a line is too long");
        refill();
    }
    *stop = 0;
    if (sscanf(buffer + first, "%lld %lld", offset, length) != 2)
        fail_and_exit("the transfer is not readable");
    first = (size_t)(stop + 1 - buffer);
    return *length != 0;
}

/* Write the data of a file; what lies between stays a hole. */
static void fill_pieces(int file, const char *name, long long size)
{
    long long offset, length, at = 0;
    if (ftruncate(file, size) < 0)
        fail(name);
    while (read_piece(&offset, &length)) {
        if (length < 0 || offset < at || offset > size || length > size - offset)
            fail_and_exit("the transfer is not readable: a piece is out of bounds");
        if (lseek(file, offset, SEEK_SET) < 0)
            fail(name);
        fill_file(file, name, length);
        bytes += (unsigned long long)length;
        at = offset + length;
    }
}

static struct timespec as_time(long long nanoseconds)
{
    struct timespec time = {nanoseconds / 1000000000, nanoseconds % 1000000000};
    if (time.tv_nsec < 0) {
        time.tv_sec--;
        time.tv_nsec += 1000000000;
    }
    return time;
}

static void make_file(int parent, const char *name, const struct record *record)
{
    remove_other(parent, name);
    int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    int file = openat(parent, name, flags, 0600);
    if (file < 0)
        fail(name);
    if (record->kind == 'h') {
        fill_pieces(file, name, record->size);
    } else {
        fill_file(file, name, record->size);
        bytes += (unsigned long long)record->size;
    }
    struct timespec times[] = {as_time(record->mtime), as_time(record->mtime)};
    if (fchmod(file, record->mode & 0777) < 0 || futimens(file, times) < 0)
        fail(name);
    if (close(file) < 0)
        fail(name);
    files++;
}

/* The length of the UTF-8 letter that stands here; 0 for a control character or none. */
static size_t letter_size(const unsigned char *at)
{
    size_t more = *at >= 0xf0 ? 3 : *at >= 0xe0 ? 2 : 1;
    if (*at < 0x80)
        return *at >= ' ' && *at != 0x7f;
    if (*at < 0xc3 || *at > 0xf4) /* below it: control characters, and bytes that begin none */
        return *at == 0xc2 && at[1] > 0x9f && at[1] < 0xc0 ? 2 : 0;
    for (size_t i = 1; i <= more; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    return more + 1;
}

/* Kept for a person to read: bytes that are no letters are spelled out. */
static void skip(const char *path, const char *why, const char *to, const char *more)
{
    static unsigned char text[4 * LONGEST];
    char kept[4 * SKIP_LETTERS + 1];
    if (++skips > KEPT_SKIPS)
        return;
    snprintf((char *)text, sizeof text, "%s: %s%s%s", path, why, to, more);
    const unsigned char *at = text;
    size_t length = 0;
    for (int letters = 0; *at && letters < SKIP_LETTERS; letters++) {
        size_t size = letter_size(at);
        if (size)
            memcpy(kept + length, at, size);
        length += size ? size : (size_t)sprintf(kept + length, "\\x%02x", *at);
        at += size ? size : 1;
    }
    kept[length] = 0;
    add_pair(&skipped, "skipped", kept);
}

static void make_link(int parent, const char *name, const struct record *record, size_t depth)
{
    bool whole = strlen(record->extra) == record->extra_size;
    if (!whole || !stays_inside(record->extra, depth)) {
        skip(record->name, "a link to ", record->extra, ", which may lead out of the folder");
        return;
    }
    remove_other(parent, name);
    if (symlinkat(record->extra, parent, name) < 0)
        fail(name);
    files++;
}

/* How many folders a name has above it; fails where it leaves the target. */
static size_t depth_of(const char *name, size_t size)
{
    size_t depth = 0;
    bool bad = root < 0 || strlen(name) != size;
    for (const char *at = name; at && !bad;) {
        size_t length = strcspn(at, "/");
        bad = !length || (length == 1 && *at == '.') || (length == 2 && !strncmp(at, "..", 2));
        depth += at[length] == '/';
        at = at[length] ? at + length + 1 : NULL;
    }
    if (bad)
        fail_and_exit("'%s' leaves the target", name);
    return depth;
}

/* Give a file that came before another name. It is found without following any link. */
static void make_name(int parent, const char *name, struct record *record)
{
    struct stat info;
    depth_of(record->extra, record->extra_size);
    int at = fcntl(root, F_DUPFD_CLOEXEC, 0);
    char *rest = record->extra, *part = strsep(&rest, "/");
    for (; rest && at >= 0; part = strsep(&rest, "/")) {
        int deeper = open_folder(at, part);
        close(at);
        at = deeper;
    }
    if (at < 0 || fstatat(at, part, &info, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(info.st_mode))
        fail_and_exit("%s: no file to give another name", part);
    remove_other(parent, name);
    if (linkat(at, part, parent, name, 0) < 0)
        skip(record->name, "another name of a file: ", strerror(errno), "");
    else
        files++;
    close(at);
}

static bool is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* Make a folder and what is missing above it. */
static void make_way(char *path)
{
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        path[--length] = 0;
    if (is_folder(*path ? path : "/"))
        return;
    char *slash = strrchr(path, '/');
    if (slash) {
        *slash = 0;
        make_way(path);
        *slash = '/';
    }
    if (mkdir(path, 0755) < 0)
        fail(path);
}

/* The first entry: the target is a folder or a file, as the source was. */
static void begin(const struct record *record)
{
    static char path[2 * LONGEST + 2];
    if (root >= 0 || !strchr("dfh", record->kind))
        fail_and_exit("the transfer has no root, or two");
    size_t length = (size_t)snprintf(path, LONGEST, "%s", target);
    if (length >= LONGEST || *path != '/')
        fail_and_exit("the target's name cannot be used");
    const char *name = NULL;
    if (record->kind != 'd') {
        const char *slash = strrchr(record->extra, '/');
        if (path[length - 1] == '/' || is_folder(path))
            snprintf(path + length, LONGEST + 2, "/%s", slash ? slash + 1 : record->extra);
        char *last = strrchr(path, '/');
        name = last ? last + 1 : path;
        if (last)
            *last = 0;
    }
    make_way(path);
    root = open(*path ? path : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root < 0)
        fail(path);
    if (name)
        make_file(root, name, record);
}

static void take_record(struct record *record)
{
    if (!record->name_size) {
        begin(record);
        return;
    }
    if (record->kind == 's' && root >= 0) {
        skip(record->name, record->extra, "", "");
        return;
    }
    size_t depth = depth_of(record->name, record->name_size);
    static char path[LONGEST + 1];
    memcpy(path, record->name, record->name_size + 1);
    char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    if (slash)
        *slash = 0;
    int parent = open_parent(slash ? path : "");
    switch (record->kind) {
    case 'd': make_folder(parent, name, record); break;
    case 'f':
    case 'h': make_file(parent, name, record); break;
    case 'k': make_name(parent, name, record); break;
    case 'l': make_link(parent, name, record, depth); break;
    default: fail_and_exit("the transfer is not readable: a record of kind '%c'", record->kind);
    }
}

void run_unpack(char *payload, size_t size)
{
    static struct fields done;
    static struct record record;
    char **words, more[48];
    if (split_fields(payload, size, &words) != 1)
        fail_and_exit("the request cannot be read");
    target = words[0];
    for (read_record(&record); record.kind != 'e'; read_record(&record))
        take_record(&record);
    if (root < 0)
        fail_and_exit("the transfer is empty");
    add_pair(&done, "done", "1");
    add_count(&done, "files", files);
    add_count(&done, "bytes", bytes);
    memcpy(done.bytes + done.used, skipped.bytes, skipped.used);
    done.used += skipped.used;
    if (skips > KEPT_SKIPS) {
        snprintf(more, sizeof more, "and %llu more", skips - KEPT_SKIPS);
        add_pair(&done, "skipped", more);
    }
    report_and_exit(&done, -1);
}
