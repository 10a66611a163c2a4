/* How the sandbox is: its processes, how often the kernel killed one for memory, its disk. */
#include "plimsoll.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

/* The beginning of a small file; false where there is none. */
static bool text_of(const char *path, char text[1024])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t got = read(fd, text, 1023);
    close(fd);
    text[got > 0 ? got : 0] = 0;
    return true;
}

/* The value of `oom_kill` in a control group's file; false where there is none. */
static bool oom_kills_in(const char *path, char value[24])
{
    static const char key[] = "oom_kill ";
    char text[1024];
    if (!text_of(path, text))
        return false;
    for (char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (!strncmp(line, key, sizeof key - 1))
            return sscanf(line + sizeof key - 1, "%23[0-9]", value) == 1;
    }
    return false;
}

/* Whether what is written here is written as root. Through an overlay all write as who mounted
   it, and that is root where this is no user namespace. */
static bool writes_as_root(const struct statfs *disk)
{
    char text[1024];
    unsigned long first, outside, count;
    bool overlay = (unsigned long)disk->f_type == OVERLAYFS_SUPER_MAGIC;
    if (!overlay || !text_of("/proc/self/uid_map", text))
        return false;
    return sscanf(text, "%lu %lu %lu", &first, &outside, &count) == 3 && !first && !outside &&
           count == 0xffffffff;
}

/* What the disk under the root says of itself; nothing where nobody knows. */
static void add_disk(struct fields *fields)
{
    struct statfs disk;
    if (statfs("/", &disk) || !disk.f_blocks)
        return;
    unsigned long long size = disk.f_frsize ? disk.f_frsize : disk.f_bsize;
    add_count(fields, "disk_size", disk.f_blocks * size);
    add_count(fields, "disk_free", disk.f_bfree * size);
    add_count(fields, "disk_available", disk.f_bavail * size);
    if (disk.f_files)
        add_count(fields, "disk_files", disk.f_ffree);
    add_count(fields, "disk_as_root", writes_as_root(&disk));
}

void send_status(uint32_t number)
{
    static struct fields fields;
    char kills[24] = "";
    fields.used = 0;
    long processes = count_processes();
    if (processes < 0)
        add_pair(&fields, "error", "/proc cannot be read");
    else
        add_count(&fields, "processes", (unsigned long long)processes);
    if (!oom_kills_in("/sys/fs/cgroup/memory.events", kills))
        oom_kills_in("/sys/fs/cgroup/memory/memory.oom_control", kills);
    add_pair(&fields, "oom_kills", kills);
    add_disk(&fields);
    send_frame(END, number, fields.bytes, fields.used);
}
