"""A client that cannot read an image learns it."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.vl.utils:encode_image_base64',
       group='correctness',
       upstream={'54d1b4e27530ab50': '0.6.0 to 0.6.4'},
       why='What it cannot read becomes a black 32x32 image, which is then sent to the server.',
       remove_when="encode_image_base64('/nowhere.jpg') raises an error")
def encode_image_or_fail(original):
    from lmdeploy_ext.vl.image_pixels import as_file

    def encode_image_base64(image):
        import base64
        return base64.b64encode(as_file(image)).decode('ascii')

    return encode_image_base64
