"""`load_image` reads an image rightly, or says why it cannot."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.vl.utils:load_image',
       group='correctness',
       upstream={'9b30d230c3a33b7d': '0.6.0 to 0.6.4'},
       why='What it cannot read becomes a black 32x32 image and gets an answer; EXIF orientation '
       'is ignored, transparency dropped, a 16-bit PNG becomes white.',
       remove_when="load_image('/nowhere.jpg') raises an error")
def load_image_or_fail(original):
    from lmdeploy_ext.vl.image_pixels import load_pil

    def load_image(image_url):
        return load_pil(image_url)

    return load_image
