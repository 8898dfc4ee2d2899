"""The module with which ``urllib.request`` asks macOS for its proxies: there are none."""


def _get_proxy_settings():
    return {}


def _get_proxies():
    return {}
