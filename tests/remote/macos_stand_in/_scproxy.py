"""A stand-in for the module by which ``urllib.request`` queries macOS for proxies. It returns none."""


def _get_proxy_settings():
    return {}


def _get_proxies():
    return {}
