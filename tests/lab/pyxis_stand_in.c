/* A stand-in for pyxis: its two options, and a chroot with bind mounts in place of enroot. Every run is root's. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>
#include <slurm/spank.h>
SPANK_PLUGIN(pyxis, 1);
static char image[4096], mounts[65536];
static int set(int val, const char *arg, int remote) {
    snprintf(val ? mounts : image, val ? sizeof mounts : sizeof image, "%s", arg);
    return 0;
}
static struct spank_option options[] = {
    {"container-image", "[USER@][REGISTRY#]IMAGE[:TAG]|PATH", "stand-in", 1, 0, set},
    {"container-mounts", "SRC:DST[:FLAGS]", "stand-in", 1, 1, set}};
int slurm_spank_init(spank_t sp, int ac, char **av) {
    for (int i = 0; i < 2; i++) spank_option_register(sp, &options[i]);
    return 0;
}
static int mounted(const char *from, const char *to) {
    char place[8192], part[8192];
    snprintf(place, sizeof place, "%s%s", image, to);
    for (char *at = place + strlen(image) + 1; (at = strchr(at, '/')); at++) {
        snprintf(part, sizeof part, "%.*s", (int)(at - place), place);
        mkdir(part, 0755);
    }
    mkdir(place, 0755);
    if (mount(from, place, NULL, MS_BIND | MS_REC, NULL)) { slurm_error("pyxis: %s: %m", to); return -1; }
    return 0;
}
int slurm_spank_task_init_privileged(spank_t sp, int ac, char **av) {
    const char *own[] = {"/dev", "/proc", "/sys", "/tmp"};
    if (!image[0]) return 0;
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) return -1;
    for (int i = 0; i < 4; i++) if (mounted(own[i], own[i])) return -1;
    for (char *save, *one = strtok_r(mounts, ",", &save); one; one = strtok_r(NULL, ",", &save)) {
        char *to = strchr(one, ':');
        *to++ = 0;
        to[strcspn(to, ":")] = 0;
        if (mounted(one, to)) return -1;
    }
    return chroot(image) || chdir("/") ? -1 : 0;
}
